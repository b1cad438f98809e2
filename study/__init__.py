"""The study: everything that is needed to judge five papers, in a checkout of the repository.

    methods      the table of all methods by short names
    weights      what the name of a head stands for, and its hash
    measure      cells: functions that time methods on prompts, compare their texts, and measure other things
    record       blocks of measurements in files that survive interruptions
    experiments  the table of everything that is recorded
    metrics      the usual measures of speculative decoding, from the steps of a generation
    quantities   tables of what is compared, from recordings
    stats        statistics over prompts with intervals
    replay       what other growth rules would have done along a recorded text
    prices       what forwards cost
    paper        the papers' printed numbers
    scale        commands for the papers' own models, and the memory and minutes that they need, estimated
    claims       judges the papers' sentences, one module per paper
    verdicts     shows the verdicts on the claims
    figures      redraws the papers' figures, one module per paper
    commands     the commands of ``python -m study``

Import what you need by name: ``from study import experiments, stats``.
"""
