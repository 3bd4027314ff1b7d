"""Aliases' configs and the shapes derived from them, against transformers."""

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from engines.aliases import ALIASES, written_config
from engines.parameters import context_limit, count_parameters, normalised, parameter_shapes
from engines.shape import read_shape


@pytest.mark.parametrize("alias", ALIASES)
def test_every_alias_has_the_parameters_that_transformers_builds(alias):
    written = written_config(alias)
    config = dict(written)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(config.pop("model_type"), **config))
    expected = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    assert parameter_shapes(normalised(written)) == expected
    assert read_shape(normalised(written)).context == context_limit(written)


@pytest.mark.parametrize(
    ("alias", "parameters"),  # as the models' pages state them
    [
        ("smollm2-135m", 134_515_008),
        ("llama-7b", 6_738_415_616),
        ("llama-3.1-8b", 8_030_261_248),
        ("llama-3.2-1b", 1_235_814_400),
        ("mistral-7b", 7_248_023_552),
        ("qwen2.5-0.5b", 494_032_768),
        ("qwen3-8b", 8_190_735_360),
        ("opt-6.7b", 6_658_473_984),
    ],
)
def test_sizes_are_those_published(alias, parameters):
    assert count_parameters(normalised(written_config(alias))) == parameters


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("llama", {"attention_bias": True, "mlp_bias": True}),
        ("qwen3", {"attention_bias": True, "head_dim": 48}),
        ("opt", {"ffn_dim": 128, "enable_bias": False}),
    ],
)
def test_variants_have_the_parameters_that_transformers_builds(family, changes):
    sizes = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4, "vocab_size": 100}
    sizes |= {"word_embed_proj_dim": 64} if family == "opt" else {"num_key_value_heads": 2, "intermediate_size": 96}
    with torch.device("meta"):
        built = AutoConfig.for_model(family, **sizes, **changes)
        model = AutoModelForCausalLM.from_config(built)
    config = normalised(built.to_dict())
    assert parameter_shapes(config) == {name: tuple(tensor.shape) for name, tensor in model.named_parameters()}


def test_rope_is_found_in_its_old_and_its_new_place():
    old = written_config("llama-3.1-8b")
    new = {key: value for key, value in old.items() if not key.startswith("rope")}
    new["rope_parameters"] = {**old["rope_scaling"], "rope_theta": 500000.0}
    keys = ("rope_parameters", "rope_scaling", "rope_theta")
    assert [normalised(old)[key] for key in keys] == [normalised(new)[key] for key in keys]
    assert normalised(old)["rope_parameters"]["rope_theta"] == 500000.0
    assert normalised(written_config("llama-7b"))["rope_scaling"] is None
    dated = {**old, "rope_scaling": {"type": "linear", "factor": 2.0}}
    assert normalised(dated)["rope_scaling"]["rope_type"] == "linear"


def test_a_sliding_window_bounds_the_context_where_it_is_used():
    mistral = written_config("mistral-7b")
    assert context_limit(mistral) == 32768
    assert context_limit({**mistral, "sliding_window": 4096}) == 4096
    assert context_limit(written_config("qwen2.5-7b")) == 32768
