"""Names of configuration fields by what they do to the layers."""

from __future__ import annotations

__all__ = ["STRUCTURAL", "UNLIKE_LAYERS", "WITHOUT_EFFECT"]

UNLIKE_LAYERS = {
    "block_configs": "each layer has its own sizes (a pruned architecture such as Nemotron-NAS)",
    "hybrid_override_pattern": "state-space layers alternate with attention",
    "layers_block_type": "state-space layers alternate with attention",
    "attn_layer_period": "state-space layers alternate with attention",
    "ssm_cfg": "its layers are state-space layers",
    "mamba_d_state": "some of its layers are state-space layers",
    "ssm_state_size": "some of its layers are state-space layers",
    "attention_chunk_size": "its attention sees chunks",
    "num_kv_shared_layers": "its layers share keys and values",
}
"""Fields of architectures that no family here describes, with what they mean."""

STRUCTURAL = frozenset(
    {
        "add_cross_attention",
        "index_topk",
        "kv_lora_rank",
        "layer_types",
        "moe_intermediate_size",
        "moe_num_experts",
        "n_routed_experts",
        "n_shared_experts",
        "num_attention_groups",
        "num_experts",
        "num_local_experts",
        "num_nextn_predict_layers",
        "q_lora_rank",
        "qk_layernorm",
        "sliding_window_pattern",
        "use_qk_norm",
    }
)
"""Fields that change the layers: where the family does not read them, the file describes something else."""

_WITHOUT_EFFECT = """
    architectures model_type auto_map transformers_version torch_dtype dtype quantization_config use_cache
    initializer_range initializer_factor bos_token_id eos_token_id pad_token_id decoder_start_token_id sep_token_id
    unk_token_id _name_or_path task_specific_params summary_type summary_use_proj summary_activation
    summary_first_dropout summary_proj_to_labels hidden_act hidden_activation activation_function activation
    rms_norm_eps layer_norm_eps layer_norm_epsilon norm_eps rope_theta rope_scaling rope_parameters
    rope_local_base_freq rope_type rotary_pct rotary_emb_base partial_rotary_factor original_max_position_embeddings
    max_position_embeddings n_positions n_ctx seq_length max_seq_len max_window_layers attention_dropout
    router_aux_loss_coef output_router_logits norm_topk_prob router_jitter_noise routed_scaling_factor scoring_func
    topk_method topk_group n_group seq_aux aux_loss_alpha ep_size pretraining_tp attn_logit_softcapping
    final_logit_softcapping query_pre_attn_scalar cache_implementation use_bidirectional_attention is_encoder_decoder
    gradient_checkpointing language id2label label2id reorder_and_upcast_attn scale_attn_by_inverse_layer_idx
    scale_attn_weights attention_softmax_in_fp32 scale_attention_softmax_in_fp32 classifier_dropout hidden_dropout
    offset_alibi masked_softmax_fusion skip_bias_add skip_bias_add_qkv slow_but_exact
    apply_residual_connection_post_layernorm layerdrop relative_attention_max_distance attn_implementation
    _attn_implementation attention_probs_dropout_prob embd_pdrop resid_pdrop attn_pdrop num_key_value_heads head_dim
    max_sequence_length model_max_length return_dict output_attentions output_hidden_states embedding_dropout
    use_sliding_window sliding_window swiglu_limit initial_context_length experts_per_token
"""

WITHOUT_EFFECT = frozenset(_WITHOUT_EFFECT.split())
"""Fields that are known to change neither sizes nor FLOPs (a few are read by some families only)."""
