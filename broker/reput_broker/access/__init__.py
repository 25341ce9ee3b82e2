"""Who may use the broker (RocketMQ: the module auth).

- `opening`: access control as the configuration asks for it, or none
- `model`: users, rules, and the decision whether a user may do something
- `user_file`: the file with the users; `changes`: how requests and commands change it
- `requests`: the rights that each request needs
- `control`: checks each request of the broker's ports
- `processor`: requests about users and rules
- `pages`: the same users for the pages of the HTTP port
- `audit`: the log entries of refusals and administrative requests
"""
