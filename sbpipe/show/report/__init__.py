"""The page, pictures and trace of runs and studies, made from their files. Never imports a role or torch."""
