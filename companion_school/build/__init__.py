"""Your own transformer: learners write it file by file, and each file is checked.

stages            the stages, with their files and lessons
stubs             the reference of each stage and the stub that the learner starts from
isolated_modules  modules that import each other, loaded separately from all other modules
workspace         the learner's folder and the state of each file in it
parts             the parts of a stage: functions to check, with test cases and known mistakes
checks            the parts of each stage, one module per stage
check             checks a stage in a separate process (`check_process`)
stage_at_fault    finds the earlier stage at fault, if the stage's own file is right
first_difference  finds the first tensor that differs from the reference and the line that computed it
trace             records the operations, function calls and module calls of a run
compared_runs     compares the tensors of two recorded runs
origin            traces a tensor that differs back to a line of code
scenes            the runs that are compared at each stage, and their tensors
bugs              common bugs; each must be located at the right line
verify            verifies the checks: right answers pass, known mistakes are named, mutants are caught
own               the learner's files for a notebook, where they are right
saved_model       saves a learner's model as a checkpoint that every command reads
story             trains a small model of the learner's that tells stories
simulated_device  a simulated second device, for machines without a GPU
take_over         copies answers to exercises into the files of the stages
real_model        stage 10 on SmolLM2
race              bits per byte after a fixed number of minutes of training (`race_score`)
"""
