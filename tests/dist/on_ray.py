def run(lab, job, report):
    pass
