systemd-sysusers /usr/lib/sysusers.d/meshkeep.conf || :
systemd-tmpfiles --create /usr/lib/tmpfiles.d/meshkeep.conf || :
if [ -d /run/systemd/system ]; then
  systemctl daemon-reload || :
  systemctl try-restart meshkeep.service || :
fi
