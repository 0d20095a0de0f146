"""Your own transformer: the reader writes it himself, file by file, and each is checked.

stages            the stages, their files, their lessons
stubs             the reference of a stage, and the stub that the reader begins with
isolated_modules  files that import each other, loaded apart from all others
workspace         the reader's folder, and what stands in it
parts             what a stage is examined by: its functions, their cases, the mistakes that people make
checks            the parts of each stage
check             a stage examined, in a process (`check_process`): what is right, and in which file a fault lies
first_difference  where a learner's numbers leave the right ones: the first tensor, and the line that made it
trace             a run recorded: operations, calls, modules
compared_runs     two records beside each other: which tensors agree
origin            from a tensor that differs back to its line
scenes            the runs of each stage, and the tensors in them
bugs              bugs that people write; each must be placed where it stands
verify            whether a check passes what is right, names the mistakes, and notices mutants
own               the learner's files for a notebook, where they are right
take_over         answers to exercises taken over into the files of the stages
real_model        stage 10 on SmolLM2
race              minutes of training and what they bring, in bits for each byte (`race_score`)
"""
