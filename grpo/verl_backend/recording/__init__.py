"""verl's files turned into ours while it trains: metrics, responses, the display, the summary."""
