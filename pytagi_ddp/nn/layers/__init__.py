"""The layers, blocks of them, and fusions of neighbours."""
