INSERT INTO t VALUES ('a','b');
INSERT INTO t VALUES ('c','d');
