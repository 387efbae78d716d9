from __future__ import annotations

import pytest

from optimizer.report.secrets import hide_argument_secrets, hide_secrets, is_secret_name


@pytest.mark.parametrize("name", ["HF_TOKEN", "hf-token", "OPENAI_API_KEY", "api_key", "DB_PASSWORD", "AWS_SECRET"])
def test_names_of_secrets(name):
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name", ["max-num-batched-tokens", "TOKENIZERS_PARALLELISM", "VLLM_CPU_KVCACHE_SPACE", "monkey"]
)
def test_names_of_no_secrets(name):
    assert not is_secret_name(name)


@pytest.mark.parametrize(
    "text",
    [
        "postgresql+psycopg://ann:pl4nted@db:5432/tuning",
        "run --baseline 'HF_TOKEN=pl4nted vllm serve m'",
        "vllm serve m --api-key pl4nted",
        "vllm serve m --api-key=pl4nted",
        "the hub refused pl4nted-in-the-environment",
    ],
)
def test_a_secret_is_masked_wherever_it_stands(text):
    hidden = hide_secrets(text, {"HF_TOKEN": "pl4nted-in-the-environment"})
    assert "pl4nted" not in hidden
    assert "***" in hidden


def test_a_setting_is_not_mistaken_for_a_secret():
    text = "max-num-batched-tokens=2048 sqlite:////tmp/studies.db https://host:8000/v1"
    assert hide_secrets(text, {}) == text


def test_the_word_after_a_secret_option_is_masked():
    assert hide_argument_secrets(["--hf-token", "pl4nted", "--port", "1"], {}) == ["--hf-token", "***", "--port", "1"]
