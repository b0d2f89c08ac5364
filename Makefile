# The contributor's commands. They use the environment that train.sh finds or makes, GRPO_PYTHON included.
.DEFAULT_GOAL := help
.PHONY: help check lint types fast test test-verl test-verl-full format clean
FAST := not slow and not verl and not verl_full and not gpu and not browser
ALL := not verl and not verl_full and not gpu
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 10

check: ## format, lint, types and the fast tests, under a minute: before every commit
	@$(MAKE) --no-print-directory lint && $(MAKE) --no-print-directory -j2 types fast

lint:
	@python="$$(./train.sh --setup dev)" && "$$python" -m ruff format --check . && "$$python" -m ruff check .

types:
	@python="$$(./train.sh --setup dev)" && "$$python" -m pyright --pythonpath "$$python"

fast:
	@python="$$(./train.sh --setup dev)" && "$$python" -m pytest -q -m '$(FAST)'

test: ## all tests but those that need a GPU or start verl: what .ci/run runs
	@python="$$(./train.sh --setup dev verl-maths)" && "$$python" -m pytest -m '$(ALL)' --timeout=1200 $(PYTEST)

test-verl: ## real verl on a CPU (Ray, FSDP2, vLLM): trains, is killed, resumes, exports, fails; .ci/run runs it too
	@python="$$(./train.sh --setup dev)" && ./train.sh setup --engine verl --device cpu && \
	"$$python" -m pytest -m verl --timeout=1200 $(PYTEST)

test-verl-full: ## more real runs: DrGRPO, LoRA, two ranks, two nodes, agreement with the embedded engine; an hour or so
	@python="$$(./train.sh --setup dev)" && ./train.sh setup --engine verl --device cpu && \
	"$$python" -m pytest -m 'verl or verl_full' --timeout=2400 $(PYTEST)

format: ## lay out the code and mend what ruff can
	@python="$$(./train.sh --setup dev)" && "$$python" -m ruff format . && "$$python" -m ruff check --fix .

clean: ## remove the environment and the caches; outputs/ stays
	rm -rf .venv* .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
