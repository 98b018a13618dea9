"""The selector: disposable, holds a replica of the weights and a history of scores, and nothing that must
survive.
"""
