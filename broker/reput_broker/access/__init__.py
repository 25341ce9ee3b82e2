"""Who may use the broker (RocketMQ: the module auth).

- `model`: users, rules, the decision whether a user may do something, and how users are changed
- `user_file`: the file with the users
- `requests`: the rights that each request needs; the log entries of refusals and administrative requests
- `control`: access control as the configuration asks for it, or none; checks each request of the broker's ports
- `processor`: requests about users and rules
- `pages`: the same users for the pages of the HTTP port; the logins of browsers
"""
