import json
import sys

from trackio.sqlite_storage import SQLiteStorage

project = sys.argv[1]
print(
    json.dumps(
        [
            {
                "name": run,
                "rows": SQLiteStorage.get_logs(project, run),
                "system": SQLiteStorage.get_system_logs(project, run),
                "config": SQLiteStorage.get_run_config(project, run),
            }
            for run in SQLiteStorage.get_runs(project)
        ]
    )
)
