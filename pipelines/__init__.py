"""Example pipelines, one module per DAG, and one small runner per orchestrator."""
