"""``torchbus new-plugin``: writes the package of a plugin, which passes its checks at once.

``template/common`` goes into each package, and one folder beside it for each kind of plugin.
"""
