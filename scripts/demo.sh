#!/usr/bin/env bash
# A walk through Gemma 3 270M, opened as a database. Usage: scripts/demo.sh PATH_OF_LARQL
set -euo pipefail
larql=$(realpath "$1")

if [ -t 1 ] && [ -z "${NO_COLOR:-}" ]; then bold=$'\e[1m' dim=$'\e[2m' plain=$'\e[0m'; else bold= dim= plain=; fi
say() { printf '\n%s# %s%s\n' "$dim" "$*" "$plain"; }
run() {
  local shown='' word
  for word; do case $word in *' '*) shown+=" \"$word\"" ;; *) shown+=" $word" ;; esac; done
  printf '%s$ larql%s%s\n' "$bold" "$shown" "$plain"
  "$larql" "$@"
}

say "This machine, and the kernels in use."
run info

say "The model: 253 MB, fetched once, its SHA-256 checked."
run pull gemma-3-270m
cache=${XDG_CACHE_HOME:-$HOME/.cache}/larql
gguf=$cache/gemma-3-270m-q4_k_m.gguf

# The vindex links the model file, which works within one file system: so it stands beside it.
vindex=$cache/demo/gemma-3-270m.vindex
mkdir -p "$cache/demo"
cd "$cache/demo"
say "A vindex of it: the weights are linked, not copied; every feature gets its labels."
run extract-index "$gguf" -o gemma-3-270m.vindex --labels eager --force

say "What is in there."
run stats gemma-3-270m.vindex

say "Which features of layer 12 answer to the word France?"
run knn gemma-3-270m.vindex --layer 12 --token France --top 5

say "Which features of the upper layers fire while the model reads a text? A forward pass says."
run walk gemma-3-270m.vindex "Berlin is the capital of" --layers 12.. --top 2

say "How does the prediction come about, layer by layer?"
run trace gemma-3-270m.vindex "Berlin is the capital of"

say "Which features speak for it, and what becomes of it without the strongest fifty?"
run why gemma-3-270m.vindex "Berlin is the capital of" --top 5 --ablate 50

say "Which features write a word? No forward pass: their output directions, against its unembedding."
run describe gemma-3-270m.vindex France --top 8
run describe gemma-3-270m.vindex Monday --top 8
run describe gemma-3-270m.vindex python --top 8

say "One feature, closely."
run feature gemma-3-270m.vindex 17:1388

say "Is every byte what the manifest says?"
run verify gemma-3-270m.vindex

say "The vindex stays in $vindex: try larql describe with a word of your own."
