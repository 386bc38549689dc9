from coppice_worker import router, handler, Send


@router
def route(msg, ctx):
    return ["admit"]


@handler
def admit(msg, ctx):
    return [Send("emr", msg.body)]
