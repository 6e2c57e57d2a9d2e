"""Typed decisions: questions whose answers are labels with probabilities, settled as soon as the model is sure.

`Engine.decide` runs its own scheduler. A server that already has a scheduler can decode decisions together with other
requests:

    plan = DecisionPlan.prepare(engine, {"urgent": Predicate("Is it urgent?")}, on_unsure="abstain")
    job = plan.start("The server is down.")              # raises RequestError if the input cannot be asked
    waiting = {scheduler.submit(ask.request, ask.reader): ask for ask in job.asks}
    ...                                                  # for each Outcome of one of these tickets:
    for ask in job.finish(waiting.pop(outcome.ticket), outcome):
        waiting[scheduler.submit(ask.request, ask.reader)] = ask
    job.decision                                         # a Decision once all its requests are done, before None

Between two steps, `ask.preview()` returns the current probabilities of the labels, to display progress.
"""
