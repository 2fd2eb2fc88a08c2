"""The iptables spelling of rules: what iptables-save prints and iptables-restore reads."""
