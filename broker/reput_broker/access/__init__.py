"""Who may use the broker, and how connections are protected.

`tls` loads certificates, for the ports of the broker and for its connections to others; `certificate` reads until when
they are valid.
"""
