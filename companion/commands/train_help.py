"""The texts of `companion train --help`, except the help of each flag, which is in `companion.training.settings`."""

from companion.training.settings import NumberWordsSettings, TextSettings

USUAL = {
    *("data", "from", "to", "init-from"),
    *("model", "d-model", "layers", "heads", "context", "experts", "dropout"),
    *("steps", "minutes", "batch", "learning-rate", "seed"),
    *("out", "device", "compile"),
}
"""The flags that `--help` explains; `--help-all` explains the others as well."""
_STOPPING = (
    "You can stop with Ctrl-C at any time: the run is saved, and the same command resumes it. A resumed run ends with "
    "the same weights as one that was never interrupted, bit for bit, even if it was killed."
)
SEVERAL = (
    "Several processes, one for each GPU or for every few CPU cores, can train one model together. Batches and losses "
    "do not depend on the number of processes, and a run can be resumed with a different number of them. torchrun "
    "starts them, in one of three ways; in the third, everything but the experts is replicated (DDP) or, with "
    "--shard, sharded (FSDP):\n\n"
    "  torchrun --nproc-per-node 4 -m companion train\n"
    "      each process holds the whole model; gradients are summed (DDP)\n"
    "  torchrun --nproc-per-node 4 -m companion train --shard\n"
    "      each process holds a quarter of the weights, gradients and optimizer\n"
    "      states, for a model that would not fit otherwise (FSDP)\n"
    "  torchrun --nproc-per-node 4 -m companion train --experts 8 --expert-parallel 4\n"
    "      each process holds two experts of every layer, and tokens are sent to\n"
    "      their experts"
)
"""Explanation of training with several processes, which only `--help-all` shows."""
TEXT = {
    TextSettings.task: (
        "Train a decoder on text and print its bits per byte on held-out text, next to what xz and n-gram models need "
        "for the same text. Without --data, the text is the prose of the first edition of this course.\n\n"
        f"{_STOPPING}\n\n"
        "With --task number-words, an encoder-decoder learns to translate number names instead; companion train "
        "--task number-words --help shows its flags and defaults.",
        "examples:\n"
        "  companion train                                the prose of this course\n"
        "  companion train --minutes 5                    for about five minutes\n"
        "  companion train --data notes/ 'books/*.txt'    your own text\n"
        "  companion train --data python                  this Python's reference\n"
        "  companion train --d-model 256 --layers 6 --out runs/larger\n"
        "  companion train --experts 8                    a mixture of experts\n"
        "  companion train --steps 3000 --out runs/course extend a finished run\n"
        "  companion train --init-from runs/x --data me/  continue with a new text\n"
        "  companion train --config settings.yaml         the same flags from a file;\n"
        "                                                 --print_config writes one\n"
        "  companion train --task number-words            translate number names",
    ),
    NumberWordsSettings.task: (
        "Train an encoder-decoder to translate the names of the numbers from 0 to 999,999, and print how many unseen "
        "names it translates without a mistake. One number in ten is held out.\n\n"
        'German says one-and-twenty ("einundzwanzigtausenddreihundertvier"), so the model has to learn the order of '
        "the words.\n\n"
        f"{_STOPPING}",
        "examples:\n"
        "  companion train --task number-words --from de --to en\n"
        "      ten seconds of training, over 99 % right\n"
        "  companion train --task number-words --from fr --to de\n"
        "  companion train --task number-words --source-pieces characters\n"
        "      letters in place of parts of words\n"
        "  companion train --task number-words --label-smoothing 0.1\n"
        "then:\n"
        "  companion translate einundzwanzigtausenddreihundertvier",
    ),
}
"""Description and examples of each task."""
