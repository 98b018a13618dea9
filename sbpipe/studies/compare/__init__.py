"""An honest comparison of training strategies: arms by seeds under one budget, every device billed, losing
arms shown. Knows no torch.
"""
