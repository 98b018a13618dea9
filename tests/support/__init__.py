"""What tests share: small runs, made-up runs and studies, a browser. One place for all of it."""
