"""Who may use the broker, and how connections are protected (RocketMQ: the module auth).

- `model`: users, rules, and the decision whether a user may do something
- `user_file`: the file with the users
- `requests`: the rights that each request needs
- `control`: checks each request of the broker's ports; `insecure` is in its place while access control is off
- `pages`: the same users for the pages of the HTTP port
- `audit`: the log entries of refusals and administrative requests
- `tls`: loads certificates, for the ports of the broker and for its connections to others; `certificate` reads until
  when they are valid
"""
