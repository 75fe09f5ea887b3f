import { type BuiltInRule, words } from './rule.ts'

const ask = (
  id: BuiltInRule['id'],
  prefix: BuiltInRule['prefix'],
  why: string,
  match: readonly string[],
): BuiltInRule => ({ id, prefix, action: 'ask', why, match })

/** Commands that act beyond this machine or destroy work that a sandbox cannot restore. */
export const BUSINESS: readonly BuiltInRule[] = [
  ask(
    'business/publish',
    [
      words(
        'npm pnpm yarn bun cargo twine gem poetry hatch flit vsce ovsx lerna changeset semantic-release goreleaser cocoapods pod dotnet nuget mvn gradle sbt',
      ),
      words('publish upload push deploy release yank unpublish nuget'),
    ],
    'publishes a package',
    ['npm publish', 'cargo publish', 'twine upload dist/*'],
  ),
  ask(
    'business/cloud',
    [
      words(
        'aws gcloud az gsutil bq doctl linode-cli hcloud oci ibmcloud aliyun heroku fly flyctl vercel netlify wrangler firebase supabase railway render eb sam cdk serverless sls amplify',
      ),
    ],
    'uses a remote account',
    ['gcloud projects delete x', 'aws s3 ls'],
  ),
  ask(
    'business/infrastructure',
    [
      words('terraform tofu terragrunt pulumi'),
      words('apply destroy import state taint untaint up refresh down cancel stack force-unlock login'),
    ],
    'changes infrastructure',
    ['terraform apply -auto-approve'],
  ),
  ask(
    'business/machines',
    [
      words(
        'ansible ansible-playbook ansible-pull salt salt-ssh puppet chef-client knife packer vagrant fab cap nixops',
      ),
    ],
    'works on other machines',
    ['ansible-playbook site.yml'],
  ),
  ask(
    'business/cluster',
    [words('kubectl oc helm helmfile kustomize argocd flux istioctl k9s kubeadm eksctl kops')],
    'works on a cluster',
    ['helm uninstall x'],
  ),
  ask(
    'business/databases',
    [
      words(
        'psql mysql mariadb mongosh mongo redis-cli dropdb dropuser createdb createuser pg_restore pg_dump pg_dumpall mysqladmin mysqldump mongorestore mongodump mongoimport cqlsh influx sqlcmd sqlplus liquibase flyway',
      ),
    ],
    'works on a database',
    ['dropdb production'],
  ),
  ask(
    'business/migrations',
    [
      words('prisma sequelize knex typeorm drizzle-kit alembic goose migrate dbmate atlas sqlx diesel'),
      words(
        'migrate db db:drop db:migrate:undo:all migrate:rollback schema:drop push drop down reset downgrade database',
      ),
    ],
    'changes a database',
    ['prisma migrate reset --force'],
  ),
  ask(
    'business/rails',
    [
      words('rails rake bin/rails'),
      words('db:drop db:reset db:purge db:migrate:reset db:schema:load db:rollback db:truncate_all'),
    ],
    'changes a database',
    ['rails db:drop'],
  ),
  ask(
    'business/artisan',
    ['php', 'artisan', words('migrate:fresh migrate:reset migrate:refresh db:wipe migrate:rollback')],
    'changes a database',
    ['php artisan migrate:fresh'],
  ),
  ask(
    'business/django',
    [words('python python3 django-admin'), words('manage.py flush'), words('flush reset_db sqlflush')],
    'empties a database',
    ['python manage.py flush'],
  ),
  ask(
    'business/github',
    [
      words('gh glab hub'),
      words(
        'pr repo release secret workflow run issue gist api auth ssh-key gpg-key variable ruleset cache codespace',
      ),
    ],
    'acts on the forge',
    ['gh repo delete x'],
  ),
  ask(
    'business/containers',
    [words('docker podman'), words('push login system volume network')],
    'changes containers or images',
    ['docker system prune -af'],
  ),
  ask('business/mail', [words('mail mailx mutt sendmail msmtp swaks')], 'sends mail', ['mail -s x a@b']),
  ask('business/payments', [words('stripe')], 'uses a remote account', ['stripe charges create']),
  ask(
    'business/registry',
    [
      words('npm pnpm yarn'),
      words('whoami access owner team token login logout adduser deprecate dist-tag star'),
    ],
    'uses the registry account',
    ['npm whoami', 'npm dist-tag add a@1 latest'],
  ),
]
