# 0: the package is removed; 1: it is upgraded
if [ "$1" = 0 ] && [ -d /run/systemd/system ]; then
  systemctl disable --now meshkeep.service || :
fi
