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
                "media": {
                    one["name"]: [one["values"]["first_step"], one["values"]["last"].json()]
                    for found in run.collect_sequence_info(("images", "distributions")).values()
                    for one in found
                },
                "metrics": {
                    metric.name: [(int(step), value) for step, (value, _, _) in metric.data.items()]
                    for metric in run.metrics()
                },
            }
            for run in [Run(one, repo=".", **QUIET) for one in Repo(".").list_all_runs()]
        ]
    )
)
