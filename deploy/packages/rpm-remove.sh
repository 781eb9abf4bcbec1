# the last version is removed: upgrades have 1
if [ "$1" = 0 ] && [ -d /run/systemd/system ]; then
  systemctl disable --now meshkeep.service || :
fi
