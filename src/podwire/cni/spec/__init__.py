"""What the CNI specification defines, as pure functions: text, versions, results, configuration. No plugin, no kernel."""
