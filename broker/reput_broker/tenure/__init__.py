"""A tenure is a period in one role and epoch; a broker runs one after the other.

`roles` has the roles and the sources that decide the tenure. `core` is what a tenure is made of: each feature takes it
whole.
"""
