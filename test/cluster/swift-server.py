"""OpenStack Swift with its S3 API in one process, on loopback: `swift-server.py DIRECTORY` prints the port when it serves.

Debian's python3-swift; signatures are checked by s3api and tempauth. One zone, one device, one replica.
"""
import json
import os
import sys

import eventlet

eventlet.monkey_patch()

from eventlet import wsgi  # noqa: E402
from swift.common import utils  # noqa: E402
from swift.common.ring import RingBuilder  # noqa: E402

base = sys.argv[1]
utils.HASH_PATH_PREFIX = b''
utils.HASH_PATH_SUFFIX = b'test'
utils.SWIFT_CONF_FILE = os.path.join(base, 'swift.conf')
devices = os.path.join(base, 'devices')
os.makedirs(os.path.join(devices, 'sda1'), exist_ok=True)
with open(utils.SWIFT_CONF_FILE, 'w') as file:
    file.write('[swift-hash]\nswift_hash_path_suffix = test\n[storage-policy:0]\nname = gold\ndefault = yes\n')

from swift.common import storage_policy  # noqa: E402

storage_policy.reload_storage_policies()

from swift.common.wsgi import loadapp  # noqa: E402


def listener():
    return eventlet.listen(('127.0.0.1', 0), backlog=64)


def config(name, text):
    path = os.path.join(base, name + '.conf')
    with open(path, 'w') as file:
        file.write(text)
    return path


sockets = {name: listener() for name in ('account', 'container', 'object', 'proxy')}
for name in ('account', 'container', 'object'):
    builder = RingBuilder(4, 1, 1)
    place = {'ip': '127.0.0.1', 'port': sockets[name].getsockname()[1], 'device': 'sda1'}
    builder.add_dev({'id': 0, 'region': 1, 'zone': 1, 'weight': 1, 'meta': '', **place})
    builder.rebalance()
    builder.get_ring().save(os.path.join(base, name + '.ring.gz'))

COMMON = f'[DEFAULT]\nswift_dir = {base}\ndevices = {devices}\nmount_check = false\nlog_level = ERROR\n'
for name in ('account', 'container', 'object'):
    text = f'{COMMON}[pipeline:main]\npipeline = server\n[app:server]\nuse = egg:swift#{name}\n'
    eventlet.spawn(wsgi.server, sockets[name], loadapp(config(name, text)), open(os.devnull, 'w'))

PROXY = COMMON + '''[pipeline:main]
pipeline = catch_errors gatekeeper s3api tempauth proxy-server
[app:proxy-server]
use = egg:swift#proxy
account_autocreate = true
allow_account_management = true
[filter:catch_errors]
use = egg:swift#catch_errors
[filter:gatekeeper]
use = egg:swift#gatekeeper
[filter:s3api]
use = egg:swift#s3api
location = us-east-1
s3_acl = false
[filter:tempauth]
use = egg:swift#tempauth
user_test_tester = testing .admin
'''


class Cache(dict):
    """In the place of memcached, which tempauth and the proxy ask for what they know already."""

    def __bool__(self):
        return True

    def get(self, key, default=None, **_):
        return dict.get(self, key, default)

    def set(self, key, value, *_, **__):
        self[key] = value

    def delete(self, key, *_, **__):
        self.pop(key, None)


cache = Cache()
proxy = loadapp(config('proxy', PROXY))


def serve(environ, start_response):
    environ['swift.cache'] = cache
    return proxy(environ, start_response)


eventlet.spawn(wsgi.server, sockets['proxy'], serve, open(os.devnull, 'w'))
print(json.dumps({'port': sockets['proxy'].getsockname()[1]}), flush=True)
eventlet.sleep(86400)
