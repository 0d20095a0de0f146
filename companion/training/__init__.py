"""Training: a run from its settings to its checkpoints, on one process or several.

hyperparameters            how to train, as numbers with their limits
settings                   everything that a run can be told
tasks/                     what is learned
run                        a run from its settings: the task, how long, what `run.json` says
trainer                    one update after another
losses                     what is made small; preferences: between two answers, and among several
fine_tuning                the trainer of a tuned run
evaluation                 the loss over a whole text; exact_match: how many answers are right
optimizer                  AdamW, and Muon beside it
schedule                   the learning rate; mup: one that stays right for a wider model
precision                  of products; seeds: one for each purpose
run_loop                   the run from where it stands to its end
interrupts                 Ctrl-C and SIGTERM: an update is finished and saved
run_folder                 the run on disk; checkpoints: those of it; sealed_records: what seals its files
activation_checkpointing   activations made anew, for less memory; prefetch: batches made ahead of time
report, plot, tensorboard  what there is to see
distributed/               several processes
"""
