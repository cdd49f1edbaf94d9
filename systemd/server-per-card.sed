# Make bps-server@.service from bps-server.service: a server process for each network card. The
# instance bps-server@eth1 reads /etc/bps/server-eth1.conf, and the key of its name from
# /etc/bps/server-eth1.key. The sockets for agents of this host stay when one of the servers stops.
s|^Description=.*|Description=BPS server with the settings of server-%i.conf|
s|^\(ExecStart=[^ ]*\)|\1 --config /etc/bps/server-%i.conf|
s|^\(ExecReload=[^ ]*/bps-server\)|\1 --config /etc/bps/server-%i.conf|
s|^RuntimeDirectoryMode=.*|&\nRuntimeDirectoryPreserve=yes|
s|:/etc/bps/server\.key$|:/etc/bps/server-%i.key|
