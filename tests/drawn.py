"""What an ordinary run takes a part of: one of so many cases, others after every change of src/.

All tests take half an hour on two cores, most of it compilers. A run draws its cases by a hash of
the sources: the same ones again as long as these stay, so that a failure repeats, and others after
the next change, so that no case is left alone for long. `--whole` takes all of them; naming a file
or a test on the command line takes all of its.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
SOURCES = TESTS.parent / "src" / "kernelwright"

# A file, or one of its tests, which then does not count among those of the file.
ONE_OF = {
    "corpus/test_corpus.py": 6,
    "corpus/test_corpus.py::test_a_chain_is_certified": 18,
    "corpus/test_corpus.py::test_a_chain_captures_and_plans_for_a_gpu": 12,
    "cpu/test_actions_gradients.py": 3,
    "cpu/test_actions_guards.py": 8,
    "cpu/test_actions_torch.py": 8,
    "cpu/test_blame.py": 4,
    "cpu/test_build_cache.py": 14,
    "cpu/test_calling.py": 6,
    "cpu/test_channels_last.py": 10,
    "cpu/test_compilers.py": 14,
    "cpu/test_conv_epilogue.py": 12,
    "cpu/test_conv_windows.py": 8,
    "cpu/test_corpus_tiles.py": 9,
    "cpu/test_doctor.py": 12,
    "cpu/test_draws.py": 4,
    "cpu/test_front_ends.py": 4,
    "cpu/test_fuzz.py": 4,
    "cpu/test_fuzz.py::test_models_that_failed_once_are_right": 8,
    "cpu/test_fuzz.py::test_random_models_are_right": 8,
    "cpu/test_host_products.py": 4,
    "cpu/test_host_products.py::test_the_sanitizers_find_nothing": 4,
    "cpu/test_guards.py": 3,
    "cpu/test_hostile.py": 12,
    "cpu/test_in_place.py": 5,
    "cpu/test_live.py": 12,
    "cpu/test_models.py": 20,
    "cpu/test_names.py": 6,
    "cpu/test_nvcc.py::test_a_convolution_at_its_own_size": 5,
    "cpu/test_nvcc.py::test_example_at_its_own_size": 6,
    "cpu/test_nvcc.py::test_every_template_before_hopper": 8,
    "cpu/test_nvcc.py::test_header_stands_alone": 8,
    "cpu/test_nvcc.py::test_programs_of_the_gpu_tests": 8,
    "cpu/test_nvcc.py::test_zoo": 24,
    "cpu/test_outputs.py": 8,
    "cpu/test_recorded.py": 4,
    "cpu/test_scalar.py": 3,
    "cpu/test_sanitizers.py": 20,
    "cpu/test_slices.py": 5,
    "cpu/test_standing_alone.py": 8,
    "cpu/test_strided.py": 3,
    "cpu/test_tails.py": 4,
    "cpu/test_templates.py::test_tiles_turn_what_lies_across": 3,
    "cpu/test_torch_compile.py": 10,
    "cpu/test_torch_compile.py::test_a_random_program_is_as_in_eager": 12,
    "cpu/test_torch_databases.py": 10,
    "cpu/test_tutorial.py::test_every_command_of_the_page_runs": 4,
    "cpu/test_transformers.py": 3,
    "cpu/test_vectorised.py": 4,
    "cpu/test_windows.py": 10,
    "cpu/test_zoo.py": 36,
    "museum/test_museum.py::test_right_candidate_is_certified": 10,
    "museum/test_museum.py::test_what_is_right_at_a_level_holds_there": 10,
    "museum/test_museum.py::test_what_is_wrong_in_some_use_does_not_hold_there": 16,
    "museum/test_museum.py::test_wrong_candidate_is_caught": 6,
    "networks/test_networks.py": 20,
    "null/test_attention.py": 6,
    "null/test_bench.py": 8,
    "null/test_capture.py": 3,
    "null/test_channels.py": 4,
    "null/test_cli.py": 8,
    "null/test_contractions.py": 4,
    "null/test_conv_seats.py": 4,
    "null/test_dense.py": 4,
    "null/test_dropout.py": 4,
    "null/test_effects.py": 4,
    "null/test_emit.py": 4,
    "null/test_fakes.py": 6,
    "null/test_few.py": 3,
    "null/test_files.py": 6,
    "null/test_fuzz.py": 4,
    "null/test_fuzz.py::test_plans_of_random_models_compute_the_models": 8,
    "null/test_import_check.py": 8,
    "null/test_in_place.py": 4,
    "null/test_index_maps.py": 3,
    "null/test_live_classes.py": 8,
    "null/test_losses.py": 4,
    "null/test_means.py": 4,
    "null/test_networks.py": 6,
    "null/test_rules.py::test_both_sides_agree": 6,
    "null/test_rules.py::test_infinities_and_nan_land_where_eager_puts_them": 6,
    "null/test_rules.py::test_look_alikes_are_left_alone": 6,
    "null/test_rules.py::test_running_statistics_see_the_bias": 4,
    "null/test_rules_double.py": 4,
    "null/test_scaling.py": 4,
    "null/test_seats.py": 5,
    "null/test_sharing.py": 3,
    "null/test_steps.py": 3,
    "null/test_surroundings.py": 3,
    "null/test_tune.py": 8,
    "null/test_verify_baked.py": 4,
    "null/test_verify_candidates.py": 6,
    "null/test_verify_process.py": 10,
    "null/test_verify_random.py": 4,
    "null/test_verify_sanitizer.py": 3,
    "null/test_verify_uses.py": 4,
    "null/test_windows.py": 5,
    "null/test_x86_64.py": 4,
}


def draw() -> str:
    """What the choice depends on: all that is in src/."""
    found = hashlib.sha256()
    for path in sorted(SOURCES.rglob("*")):
        if path.is_file() and path.suffix != ".pyc":
            found.update(path.relative_to(SOURCES).as_posix().encode() + path.read_bytes())
    return found.hexdigest()[:12]


def chance(*words: str) -> float:
    """A number from 0 up to 1 that is another one for other words."""
    return int.from_bytes(hashlib.sha256(" ".join(words).encode()).digest()[:6], "big") / 2**48


def subject(case: pytest.Item) -> str:
    """What a case is about. Tests of the same one share what was built for it."""
    test, _, parameters = case.nodeid.partition("[")
    return parameters or test


def left_out(items: Sequence[pytest.Item], arguments: Iterable[str]) -> list[pytest.Item]:
    """The cases that are not drawn, of those that were not asked for by name."""
    named = {Path(a.partition("::")[0]).resolve() for a in arguments}
    pools: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        test = item.nodeid.partition("[")[0].removeprefix("tests/")
        pool = test if test in ONE_OF else test.partition("::")[0]
        if pool in ONE_OF and item.path.resolve() not in named:
            pools[pool].append(item)
    drawn = draw()
    left: list[pytest.Item] = []
    for pool, cases in pools.items():
        cases.sort(key=lambda case: chance(drawn, subject(case)))
        # Of fewer cases than one part of them there is one now and then.
        left += cases[int(len(cases) / ONE_OF[pool] + chance(drawn, pool)) :]
    return left
