from rcdiag.losses.rules import UpdateRules
UPDATE = UpdateRules(losses={}, aggregations={})
