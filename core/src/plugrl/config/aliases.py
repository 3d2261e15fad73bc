"""Other names of keys: verl's, and the defaults that follow another key."""

from __future__ import annotations

from plugrl.config.yaml_source import KeyPath

_PREFIX = "actor_rollout_ref"
"""verl holds model, actor, rollout and ref under this key; here they stand at the top."""

_ALIASES: dict[KeyPath, KeyPath] = {
    ("actor", "model"): ("model",),
    ("model", "is_lora"): ("model", "lora", "enable"),
    ("model", "lora_rank"): ("model", "lora", "rank"),
    ("model", "lora_alpha"): ("model", "lora", "alpha"),
    ("model", "lora_path"): ("model", "lora", "path"),
    ("model", "lora_adapter_path"): ("model", "lora", "path"),
    ("model", "target_modules"): ("model", "lora", "target_modules"),
    ("peft", "r"): ("model", "lora", "rank"),
    ("peft", "lora_alpha"): ("model", "lora", "alpha"),
    ("peft", "full_training_modules"): ("model", "lora", "modules_to_save"),
    ("peft", "method_type"): ("model", "lora", "method"),
    ("peft", "init_type"): ("model", "lora", "init"),
    ("peft",): ("model", "lora"),
    ("model", "model_path"): ("model", "path"),
    ("algorithm", "adv_type"): ("algorithm", "adv_estimator"),
    ("algorithm", "gae_lambda"): ("algorithm", "lam"),
    ("algorithm", "group_size"): ("env", "train", "group_size"),
    ("algorithm", "update_epoch"): ("actor", "ppo_epochs"),
    ("algorithm", "clip_ratio_low"): ("actor", "clip_ratio_low"),
    ("algorithm", "clip_ratio_high"): ("actor", "clip_ratio_high"),
    ("algorithm", "clip_ratio_c"): ("actor", "clip_ratio_c"),
    ("algorithm", "entropy_bonus"): ("actor", "entropy_coeff"),
    ("algorithm", "value_clip"): ("critic", "cliprange_value"),
    ("algorithm", "loss_agg_func"): ("actor", "loss_agg_mode"),
    ("algorithm", "filter_rewards"): ("algorithm", "filter_groups", "enable"),
    ("actor", "global_batch_size"): ("actor", "ppo_mini_batch_size"),
    ("actor", "micro_batch_size"): ("actor", "ppo_micro_batch_size_per_gpu"),
    ("actor", "engine", "backend"): ("actor", "strategy"),
    ("critic", "engine", "backend"): ("critic", "strategy"),
    ("ref", "engine", "backend"): ("ref", "strategy"),
    ("rollout", "sampling_params", "temperature_train"): ("rollout", "temperature"),
    ("rollout", "sampling_params", "temperature_eval"): ("rollout", "val_kwargs", "temperature"),
    ("rollout", "sampling_params", "top_k"): ("rollout", "top_k"),
    ("rollout", "sampling_params", "top_p"): ("rollout", "top_p"),
    ("runner", "max_steps"): ("trainer", "total_training_steps"),
    ("runner", "max_epochs"): ("trainer", "total_epochs"),
    ("runner", "val_check_interval"): ("trainer", "test_freq"),
    ("runner", "save_interval"): ("trainer", "save_freq"),
    ("runner", "weight_sync_interval"): ("trainer", "weight_sync_interval"),
    ("runner",): ("trainer",),
    ("trainer", "resume_mode"): ("trainer", "resume"),
    ("trainer", "keep_last"): ("trainer", "max_ckpt_to_keep"),
    ("trainer", "async_save"): ("actor", "checkpoint", "async_save"),
    ("checkpoint",): ("actor", "checkpoint"),
    ("checkpoint_format",): ("actor", "checkpoint", "format"),
    ("batch_size",): ("sft", "batch_size"),
    ("steps",): ("sft", "total_steps"),
    ("optimizer",): ("sft", "optim"),
    ("accelerator", "gradient_accumulation", "steps"): ("sft", "gradient_accumulation_steps"),
    ("drop_last",): ("sft", "drop_last"),
    ("save_freq",): ("trainer", "save_freq"),
    ("log_freq",): ("trainer", "log_freq"),
    ("seed",): ("trainer", "seed"),
    ("output_dir",): ("trainer", "default_local_dir"),
    ("job_name",): ("trainer", "experiment_name"),
    ("resume",): ("trainer", "resume"),
}
"""The keys at the root are those of LeRobot's trainer; `runner` and many of `algorithm` are those of RLinf."""

FOLLOWS: dict[KeyPath, KeyPath] = {
    ("ref", "strategy"): ("actor", "strategy"),
    ("ref", "log_prob_micro_batch_size_per_gpu"): ("actor", "ppo_micro_batch_size_per_gpu"),
    ("ref", "log_prob_use_dynamic_bsz"): ("actor", "use_dynamic_bsz"),
    ("ref", "log_prob_max_token_len_per_gpu"): ("actor", "ppo_max_token_len_per_gpu"),
    ("rollout", "log_prob_micro_batch_size_per_gpu"): ("actor", "ppo_micro_batch_size_per_gpu"),
    ("rollout", "log_prob_use_dynamic_bsz"): ("actor", "use_dynamic_bsz"),
    ("rollout", "log_prob_max_token_len_per_gpu"): ("actor", "ppo_max_token_len_per_gpu"),
    ("critic", "strategy"): ("actor", "strategy"),
    ("critic", "ppo_mini_batch_size"): ("actor", "ppo_mini_batch_size"),
    ("critic", "ppo_micro_batch_size_per_gpu"): ("actor", "ppo_micro_batch_size_per_gpu"),
    ("critic", "use_dynamic_bsz"): ("actor", "use_dynamic_bsz"),
    ("critic", "ppo_max_token_len_per_gpu"): ("actor", "ppo_max_token_len_per_gpu"),
    ("critic", "ppo_epochs"): ("actor", "ppo_epochs"),
    ("critic", "loss_agg_mode"): ("actor", "loss_agg_mode"),
    ("critic", "checkpoint", "format"): ("actor", "checkpoint", "format"),
    ("critic", "checkpoint", "async_save"): ("actor", "checkpoint", "async_save"),
}
"""Keys that take the value of another key unless they are given."""

HINTS: dict[KeyPath, str] = {
    ("dataset",): "use data.source=lerobot and data.source_options: root (a folder), episodes, delta_timestamps",
    ("policy",): "use model: model_type and the model's own keys, and model.path for policy.path",
    ("env", "type"): "environments are named by env.train.env_type",
    ("algorithm", "rollout_epoch"): "it has moved to env.train.rollout_epoch",
    ("algorithm", "eval_rollout_epoch"): "it has moved to env.eval.rollout_epoch",
    ("algorithm", "sampling_params"): "it has moved to rollout.sampling_params",
    ("algorithm", "length_params"): "it has moved to rollout.sampling_params.max_new_tokens",
    ("algorithm", "kl_beta"): "environments are trained without a reference; in text it is algorithm.kl_ctrl.kl_coef",
    ("trainer", "use_training_pipeline"): "training begins when all of a step is there, with gae and without; "
    "rollout.pipeline_stage_num overlaps environments and policy",
    ("trainer", "overlap_env_bootstrap"): "use env.train.overlap_reset",
    ("scheduler",): "use sft.optim.lr_scheduler_type, lr_warmup_steps, min_lr_ratio and num_cycles",
    ("sft", "optim", "type"): "the optimizer is AdamW",
    ("eval_freq",): "use sft.eval_every, which validates on held-out samples",
    ("num_workers",): "every worker reads ahead by itself",
    ("save_checkpoint",): "use trainer.save_freq; the last step is always saved",
    ("trackio",): "name it in trainer.logger",
    ("wandb",): "name it in trainer.logger",
    ("accelerator",): "it has mixed_precision, gradient_accumulation.steps, grad_scaler, ddp and fsdp; compiling is "
    "not implemented, and activation checkpointing is model.enable_gradient_checkpointing",
    ("actor", "grad_clip"): "the norm is clipped by actor.optim.clip_grad",
    ("critic", "grad_clip"): "the norm is clipped by critic.optim.clip_grad",
    ("actor", "ppo_micro_batch_size"): "use actor.ppo_micro_batch_size_per_gpu",
    ("model", "use_remove_padding"): "padding is always left out where the model can",
    ("trainer", "balance_batch"): "batches are always balanced",
    ("trainer", "device"): "use platform",
    ("trainer", "resume_from_path"): "give the path itself to trainer.resume",
    ("reward_model",): "use reward",
    ("custom_reward_function",): "use reward.function, as module:function, and reward.reward_kwargs",
    ("reward", "custom_reward_function"): "use reward.function, as module:function, and reward.reward_kwargs",
    ("rollout", "mode"): "rollout.name alone chooses the backend",
    ("rollout", "tensor_model_parallel_size"): "give the backend's own options under rollout.options",
    ("rollout", "gpu_memory_utilization"): "give the backend's own options under rollout.options",
}
"""What to use instead of keys known from elsewhere."""


ENV_FOLLOWS = ("env_type", "max_episode_steps", "ignore_terminations")
"""Keys of `env.eval` and `env.demos` that take the value of `env.train` unless they are given."""


def canonical(path: KeyPath) -> KeyPath:
    """Return the path under which a key is stored; empty for the bare prefix."""
    if path[:1] == (_PREFIX,):
        path = path[1:]
    for alias, target in _ALIASES.items():
        if path[: len(alias)] == alias:
            return canonical((*target, *path[len(alias) :]))
    return path
