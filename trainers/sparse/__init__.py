"""Large tables of embeddings: rows over the ranks, and how their sparse updates are made."""
