export const version = "0.1.0"; // as in package.json
