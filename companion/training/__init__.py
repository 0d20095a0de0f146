"""Training: everything about a run, from its settings to its checkpoints, in a single process or in several.

hyperparameters            training hyperparameters with their limits
settings                   all settings of a run
tasks/                     what a model learns
run                        a run from its settings to its result: new, resumed, extended or already finished
trainer                    making one update after another
losses                     training losses; preferences: losses for pairs and for groups of answers
fine_tuning                the trainer of a fine-tuning run
evaluation                 the loss over a whole text; exact_match: how many answers are right
choices                    log-likelihoods of given answers; pass_at_k: the probability that any of k answers is right
paired                     two models on the same questions: difference, interval, and McNemar's test
optimizer                  AdamW, by itself or combined with Muon
schedule                   the learning rate; mup: scaling it with a model's width
precision                  the precision of matrix products; seeds: a separate seed for each purpose
run_loop                   the loop from the last checkpoint to the end of a run
interrupts                 Ctrl-C and SIGTERM: the update in progress is finished and saved
run_folder                 the files of a run; checkpoints: its checkpoints; checksummed_records: checksummed files
activation_checkpointing   recomputing activations to save memory; prefetch: batches prepared in the background
report, plot, tensorboard  output for the user
distributed/               training in several processes
"""
