#!/usr/bin/env bash
# Creates the roles and the database of docs/postgres.md. The image of Postgres runs it once, when
# its volume is empty. The passwords come from the secrets of cluster.yaml.
set -euo pipefail

secrets=${SECRETS:-/run/secrets}
# Not on the command line, which other processes can read.
owner=$(<"$secrets/owner") service=$(<"$secrets/shop")
export owner service
if [[ -z $owner || -z $service ]]; then
  echo 'set OWNER_PASSWORD and SHOP_PASSWORD' >&2
  exit 1
fi

psql -v ON_ERROR_STOP=1 --no-psqlrc -U "${POSTGRES_USER:-postgres}" -d postgres <<'SQL'
\getenv owner owner
\getenv service service
CREATE ROLE flashsale_owner LOGIN PASSWORD :'owner';
CREATE ROLE flashsale LOGIN PASSWORD :'service';
CREATE DATABASE shop OWNER flashsale_owner ENCODING 'UTF8' TEMPLATE template0;
REVOKE ALL ON DATABASE shop FROM PUBLIC;
GRANT CONNECT ON DATABASE shop TO flashsale;
\connect shop
ALTER DEFAULT PRIVILEGES FOR ROLE flashsale_owner GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO flashsale;
SQL
