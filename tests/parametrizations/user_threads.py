"""Questions and complaints of the users of other libraries, from November 2026.

The libraries are torch, geotorch, geoopt, expRNN, adapters, pyreft, peft and others.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Thread:
    """A thread: where it is, what was said, and the tests that answer it."""

    where: str
    gist: str
    tests: tuple[str, ...] = ()
    #: why it does not concern this library, or not entirely
    reason: str = ""


CACHE = "parametrizations/test_cache.py::test_"
HERE = "parametrizations/test_user_threads.py::test_"
ORTHOGONAL = "parametrizations/test_orthogonal.py::test_"
TRAINING = "parametrizations/test_training.py::test_"
RANKS = "parametrizations/test_ranks.py::test_two_processes_are_as_one"
COMPILE = "parametrizations/test_compile.py::test_"
EXPORT = "parametrizations/test_export.py::test_"
ECOSYSTEM = "parametrizations/test_ecosystem.py::test_"
OPTIM = "optim/test_trajectory.py::test_"

THREADS = {
    1: Thread(
        "pytorch#105225",
        "matrix_exp of many tiny matrices is slow, and its backward pass slower: it "
        "takes a block of twice the size, which has a larger norm",
        (
            f"{HERE}no_matrix_is_larger_than_it_must_be",
            "linalg/test_expm_plan.py::test_costs_are_those_of_the_docstring",
        ),
    ),
    2: Thread(
        "pytorch#107291, pytorch#110848",
        "the matrices of a batch are scaled one after the other",
        (
            f"{HERE}a_batch_is_not_computed_one_by_one",
            "linalg/test_expm_plan.py::test_an_outlier_costs_its_neighbours_nothing",
        ),
    ),
    3: Thread(
        "diffBloch#174",
        "a backward pass without the block needs less than half of the memory",
        (
            f"{HERE}no_matrix_is_larger_than_it_must_be",
            "linalg/test_expm_plan.py::test_the_derivative_costs_three_exponentials",
        ),
    ),
    4: Thread(
        "pytorch#136692, #173247, #187764, #188954",
        "matrix_exp is missing on a device",
        (f"{HERE}the_default_map_factorizes_nothing",),
    ),
    5: Thread(
        "pytorch#82282, #114080",
        "NaN in gives finite numbers out; large norms give NaN",
        (
            "linalg/test_contracts.py::test_a_matrix_that_is_not_finite_becomes_nan_alone",
            "linalg/test_expm_plan.py::test_orthogonality_does_not_decay_with_the_norm",
            "parametrizations/test_rebase_state.py::test_nan_does_not_reach_the_base",
            f"{TRAINING}nan_is_gone_with_the_last_checkpoint",
        ),
    ),
    6: Thread(
        "adapters#772, #778, HeavyBall#57, transformers#47225, pytorch#9315",
        "orthogonal weights fail in half precision",
        (
            "parametrizations/test_half.py::test_only_the_weight_is_narrow",
            "parametrizations/test_scaling.py::test_training_under_autocast",
        ),
    ),
    7: Thread(
        "pytorch#167645",
        "an exported program ignores the cache, and is 25 times slower",
        (
            f"{EXPORT}a_folded_program_has_plain_weights",
            f"{EXPORT}a_program_computes_at_each_read_but_under_cached",
        ),
    ),
    8: Thread(
        "pytorch#113415",
        "torch.compile and DDP together fail on parametrized modules",
        (f"{COMPILE}compiled_data_parallel_training",),
    ),
    9: Thread(
        "pytorch#115744, #121304",
        "registering a parametrization inside of a compiled function fails",
        (
            f"{COMPILE}registering_inside_a_compiled_function",
            f"{COMPILE}registering_does_not_fit_into_one_graph",
        ),
    ),
    10: Thread(
        "pytorch#60971",
        "a parametrized module is not for TorchScript",
        (f"{EXPORT}torchscript_wants_a_folded_model",),
        reason="nor is ours; the error says what to do, and a folded module is",
    ),
    11: Thread(
        "pytorch#65688, #86457",
        "constraining a weight of nn.RNN or nn.LSTM silently stops its training",
        (
            "parametrizations/test_recurrent.py::test_trains_like_the_reference_recurrence",
        ),
    ),
    12: Thread(
        "pytorch#71062",
        "'backward a second time' with a parametrized weight",
        (
            f"{CACHE}forward_backward_forward_backward_without_a_step",
            f"{CACHE}two_backwards_through_one_graph",
        ),
    ),
    13: Thread(
        "pytorch#80811",
        "a parametrized module could not be copied",
        (
            f"{CACHE}a_copy_has_its_own_weight",
            "parametrizations/test_modules.py::test_folding_a_copy_leaves_the_module_alone",
            "parametrizations/test_state.py::test_state_dict_is_the_whole_state",
        ),
    ),
    14: Thread(
        "mlflow#8214, darts#2638, ZEST#4, mase#60",
        "saving a whole module fails, after a night of training",
        (f"{EXPORT}pickling_is_refused_before_anything_is_lost",),
        reason="torch refuses to pickle them; the state_dict holds all there is",
    ),
    15: Thread(
        "pytorch#186565",
        "functional_call does not know the names of parametrized weights",
        (
            f"{CACHE}functional_call_sees_its_own_coordinates",
            f"{ECOSYSTEM}functional_call_by_the_name_of_the_weight",
        ),
    ),
    16: Thread(
        "minLoRA#3",
        "does a parametrization work with FSDP?",
        (RANKS,),
    ),
    17: Thread(
        "pytorch#42243, #50104",
        "the wish for orthogonal weights, by exp, Cayley or reflections",
        (
            f"{ORTHOGONAL}registered_weight_is_the_nearest_point",
            f"{ORTHOGONAL}names_of_torch_mean_the_exponential",
        ),
    ),
    18: Thread(
        "pytorch#9983",
        "the logarithm of a matrix",
        (
            "linalg/test_logm.py::test_logarithm_is_that_of_scipy",
            "linalg/test_logm.py::test_derivative_is_the_inverse_of_that_of_exp",
        ),
        reason="of orthogonal and unitary matrices; square roots are not ours",
    ),
    19: Thread(
        "pyreft#179",
        "a resumed run lost base and coordinates: orthogonal to 0.1, and the loss rose",
        (
            f"{TRAINING}resuming_from_a_file_is_going_on",
            "parametrizations/test_state.py::test_state_dict_is_the_whole_state",
            "parametrizations/test_state.py::test_a_base_that_is_not_orthogonal_is_refused",
        ),
    ),
    20: Thread(
        "adapters#805",
        "on loading a model made on the meta device the base is not found",
        (
            f"{HERE}a_model_made_on_meta_is_whole_after_loading",
            f"{ORTHOGONAL}meta_weight_can_be_constrained",
            f"{ECOSYSTEM}a_pretrained_model_is_restored",
            "parametrizations/test_modules.py::test_half_precision_on_meta_can_be_materialized",
        ),
    ),
    21: Thread(
        "pyreft#63",
        "the constraint is the bottleneck of training, and was removed",
        (
            f"{CACHE}reading_many_times_in_training_computes_once",
            "linalg/test_expm_plan.py::test_costs_are_those_of_the_docstring",
        ),
        reason="times are measured by `make bench`, not tested",
    ),
    22: Thread(
        "geotorch#46",
        "inference with a layer of 2048 x 2048 is slow",
        (
            f"{CACHE}evaluation_computes_once_until_something_changes",
            "parametrizations/test_fold.py::test_folded_weight_is_the_constrained_one",
        ),
    ),
    23: Thread(
        "geotorch#30, #11",
        "30000 x 50 and flattened kernels take minutes, then all memory",
        (
            f"{HERE}no_matrix_is_larger_than_it_must_be",
            "linalg/test_tall.py::test_nothing_of_size_n_by_n_is_formed",
            "groups/test_tall_maps.py::test_nothing_of_size_n_by_n_is_formed",
            "linalg/test_householder.py::test_columns_form_nothing_square",
        ),
    ),
    24: Thread(
        "geotorch#34",
        "the wish for a cache without a context manager",
        (
            f"{CACHE}reading_many_times_in_training_computes_once",
            f"{CACHE}a_step_of_any_optimizer_is_seen",
        ),
    ),
    25: Thread(
        "geotorch#35, expRNN#8, geoopt#141, householder#6, pymanopt#62",
        "the wish for unitary matrices",
        (
            f"{ORTHOGONAL}unitary_is_orthogonal_of_a_complex_weight",
            "parametrizations/test_trajectory.py::test_twenty_steps_are_those_of_torch",
        ),
    ),
    26: Thread(
        "geotorch#23, geoopt#230",
        "which determinant, and how to have rotations only",
        (
            f"{ORTHOGONAL}determinant_is_kept",
            f"{ORTHOGONAL}det_1_is_the_nearest_rotation",
            "parametrizations/test_modules.py::test_a_reflection_is_no_rotation",
        ),
    ),
    27: Thread(
        "geotorch#10, #38",
        "kernels of convolutions as matrices; the recipe for it broke",
        (f"{ORTHOGONAL}kernel_of_a_convolution_is_one_matrix",),
    ),
    28: Thread(
        "geotorch#6",
        "a pickled module cannot be read again",
        (f"{EXPORT}pickling_is_refused_before_anything_is_lost",),
        reason="as for 14",
    ),
    29: Thread(
        "geotorch#12",
        "constraining a pretrained weight replaces it by a random one",
        (
            f"{ORTHOGONAL}registered_weight_is_the_nearest_point",
            "parametrizations/test_foreign.py::test_plain_weights_start_at_the_nearest_point",
        ),
    ),
    30: Thread(
        "geotorch#44, #26, #43",
        "'grad is None'; is it really orthogonal?; why no optimizer?",
        (
            f"{HERE}it_is_the_coordinates_that_have_a_gradient",
            "parametrizations/test_diagnose.py::test_orthogonality_error_and_angles",
            f"{TRAINING}every_optimizer_trains",
            f"{OPTIM}twenty_steps_are_those_of_the_equations",
        ),
    ),
    31: Thread(
        "geotorch#39, #15",
        "registration fails on another device; assignments fail at random",
        (
            f"{HERE}what_is_orthogonal_to_rounding_is_taken",
            "parametrizations/test_modules.py::test_sampling_does_not_depend_on_the_default_device",
            "groups/test_membership.py::test_one_operation_uses_a_quarter_of_the_tolerance",
        ),
        reason="on the devices of the machine: the CPU and meta",
    ),
    32: Thread(
        "geoopt#168",
        "gradients are not the same in all processes",
        (RANKS,),
        reason="with torch's optimizers; those of isometry.optim are in tests/optim",
    ),
    33: Thread(
        "geoopt#188, #226",
        "a copy forgets its manifold; the state of the optimizer cannot be saved",
        (
            f"{HERE}a_copy_lives_on_the_same_manifold",
            "test_declare.py::test_a_copy_is_declared_too_and_by_itself",
            f"{TRAINING}resuming_from_a_file_is_going_on",
        ),
        reason="as for 32",
    ),
    34: Thread(
        "geoopt#164, #227, #135",
        "Adam counts a step twice; the loss is NaN; the wish for a cheap Cayley map",
        (
            "parametrizations/test_rebase_state.py::test_an_optimizer_within_another_is_one_step",
            "parametrizations/test_scaling.py::test_a_step_that_was_skipped_is_not_counted",
            f"{TRAINING}early_rebasing_does_not_slow_adam_down",
            "linalg/test_cayley.py::test_backward_factorizes_nothing",
            f"{OPTIM}twenty_steps_are_those_of_the_equations",
        ),
    ),
    35: Thread(
        "expRNN#7",
        "a checkpoint has a key that does not load",
        (f"{HERE}the_keys_of_a_checkpoint_do_not_change_with_use",),
    ),
    36: Thread(
        "peft#2219, #1996, #2575, #2805, LlamaFactory#9014",
        "merging is wrong, older checkpoints do not load, training is slow",
        (
            "parametrizations/test_fold.py::test_folded_weight_is_the_constrained_one",
            f"{HERE}a_checkpoint_of_the_first_version_is_read",
        ),
    ),
    37: Thread(
        "householder#7",
        "the backward pass of reflections takes a thousand times the forward pass",
        (
            f"{HERE}reflections_are_not_applied_one_by_one",
            "linalg/test_householder.py::test_value_and_gradient_are_those_of_the_product",
        ),
    ),
    38: Thread(
        "mctorch#24",
        "L-BFGS with orthonormal columns",
        (f"{TRAINING}lbfgs_with_a_line_search",),
        reason="by torch's LBFGS on the coordinates; isometry.optim has none",
    ),
}
