"""The selector: disposable. It holds a replica of the weights and a history of scores, nothing that must survive."""
