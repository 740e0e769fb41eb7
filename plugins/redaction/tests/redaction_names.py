"""Names of secrets, and how much time a test may take."""

from __future__ import annotations

SECRET_NAMES = """key access_key aws-secret-access-key pwd bearer auth pat wandb-key wandbKey APIKey apikey X-Api-Key api.key GH_PAT HF_TOKEN
    hfToken token password Password1 db_password DB_PASS smtp_pw passphrase client_secret secret_key private_key ssh_key credentials creds
    authorization jwt session_token cookie webhook license_key mysqlpassword authtoken accessKeyId wandb_api_key_2 API_KEYS refresh_tokens""".split()  # noqa: SIM905
