//! The index over a model's feed-forward features.
