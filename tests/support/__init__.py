"""What tests share: brokers and their peers, stores, clients, faults, and waiting."""
