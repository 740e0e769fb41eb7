import json

from aim import Repo, Run

from torchbus_trackers.aim import QUIET

print(
    json.dumps(
        [
            {
                "id": run.hash,
                "name": run.name,
                "project": run.experiment,
                "hyperparameters": run["hyperparameters"],
                "config": run["torchbus"],
                "metrics": {
                    metric.name: [(int(step), value) for step, (value, _, _) in metric.data.items()]
                    for metric in run.metrics()
                },
            }
            for run in [Run(one, repo=".", **QUIET) for one in Repo(".").list_all_runs()]
        ]
    )
)
