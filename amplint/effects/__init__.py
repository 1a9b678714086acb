"""What calls do: the GradScaler protocol, autocast, optimizers, modules, gradients, and everything unknown.

Each method returns the possible (state, value, signal) of a call. Kinds of events recorded here and
their `details`:

    construct_scaler   arguments, keywords, callee, scaler
    construct_autocast arguments, keywords, callee, context, dropped
    construct_optimizer  owners, keywords, callee, masters (it may have fp32 copies of 16-bit weights)
    construct_module   module
    scale              argument, dropped
    backward           value, certain (a plain loss is known not to be scaled), framework, functional
    autograd_grad      value, create_graph
    unscale_, step, update, zero_grad, opt_step, sched_step
    clip               owners, limit, function, error_if_nonfinite
    hook               owners, clips, steps (what the function does that is called in every backward)
    grad_read, grad_write   owners, operation, arguments
    forward            module
    cast               target, dtype, how
    bce                (binary cross entropy on probabilities, as a function or an `nn.BCELoss` that is called)
    freeze, unfreeze   target
    save               payload, contents, function, holder (the dict or object in it that holds states), entries (the
                       pairs of that dict), literal (where it is made), open, stages
    copy               of, stages (a scaler is copied as an object, which pickles it)
    state_dict, load_state  of, value; of a scaler: stages (torch's stage of each optimizer)
    none_used          name (a method of the protocol is called on None)
    mix                value (a sum of a scaled loss and one that is known not to be scaled)
    jump               kind ("return", "break", "continue", "except": an exception that is caught)
    yield, evaluated   statement
    call               callee, arguments, keywords (only for names that a rule watches)
"""

from __future__ import annotations

from amplint.effects.dispatch import Effects

__all__ = ["Effects"]
