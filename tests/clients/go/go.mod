module meshkeep.test/follow

go 1.19
